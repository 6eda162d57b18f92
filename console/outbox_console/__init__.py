"""The console of outbox: screens for operators, made from the views and functions of the extension."""
