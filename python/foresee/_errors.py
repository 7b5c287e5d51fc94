"""The exceptions of the package. Each says in one line what is wrong, where, and what to do; all are a ForeseeError."""


class ForeseeError(Exception):
    """Something went wrong in foresee; the base of all its exceptions."""


class ConfigError(ForeseeError, ValueError):
    """An argument, a state or the configuration has a value that is not possible."""


class ArgumentTypeError(ForeseeError, TypeError):
    """An argument has the wrong type."""


class DatasetError(ForeseeError):
    """The dataset cannot be listed."""


class SampleError(ForeseeError):
    """A sample cannot be read. The cause is the system's error, where there is one."""

    #: The sample's number.
    sample: int
    #: Its file.
    path: str


class CacheError(ForeseeError):
    """A cache folder cannot be used."""
