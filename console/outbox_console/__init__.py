"""The console of outbox: screens for operators, made from the views and functions of the extension."""

VERSION = "1.0"     # of the extension whose views and functions it asks for
