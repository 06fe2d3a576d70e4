"""The version of the package. Extensions of the same version, and newer ones, can be its servers."""

__version__ = "0.4.0"
