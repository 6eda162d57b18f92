"""What the console is told: one file in TOML, whose names are the fields of Settings."""

import dataclasses
import ipaddress
import tomllib

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Wrong(Exception):
    """A setting that cannot be used, in words."""


@dataclasses.dataclass
class Settings:
    """Their meanings and defaults are in doc/console.md."""

    database: str = ""
    read_only_database: str = ""
    listen: str = "127.0.0.1"
    port: int = 8432
    names: list = dataclasses.field(default_factory=list)
    proxies: list = dataclasses.field(default_factory=list)
    operators: list = dataclasses.field(default_factory=list)
    passwords: str = ""
    everyone: str = "read"
    https: bool = False
    connections: int = 6
    read_timeout: float = 3.0
    action_timeout: float = 120.0

    def check(self):
        """Raises Wrong if one of them cannot be used, or if they would let in users that nothing has named."""
        for field in dataclasses.fields(self):
            value, wanted = getattr(self, field.name), type(field.default)
            if field.default is dataclasses.MISSING:
                if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                    raise Wrong("%s is to be a list of strings" % field.name)
            elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
                setattr(self, field.name, float(value))
            elif type(value) is not wanted:
                raise Wrong("%s is to be a %s" % (field.name, wanted.__name__))
        if self.everyone not in ("read", "operate"):
            raise Wrong('everyone is to be "read" or "operate"')
        if not self.proxies and not self.passwords and self.listen not in LOOPBACK:
            raise Wrong("without proxies and passwords the console listens on a loopback address only, not on %s" % self.listen)
        try:
            self.proxies = [ipaddress.ip_network(p) for p in self.proxies]
        except ValueError as e:
            raise Wrong("proxies: %s" % e) from e
        if not self.names:
            self.names = [*LOOPBACK, self.listen]
        return self

    def is_proxy(self, address):
        """True if a header of this peer says which user asks."""
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self.proxies)


def read(path):
    """The settings of a file, checked."""
    try:
        with open(path, "rb") as file:
            return Settings(**tomllib.load(file)).check()
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise Wrong("%s: %s" % (path, e)) from e
    except TypeError as e:
        raise Wrong("%s: no such setting: %s" % (path, str(e).rsplit(" ", 1)[-1])) from e
