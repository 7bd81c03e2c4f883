"""A wheel with compiled modules in it is one for this interpreter and machine; all else stands in pyproject.toml."""

from pathlib import Path

from setuptools import Distribution, setup


class LexicastDistribution(Distribution):
    """With or without compiled modules (`lexicast.compiled`)."""

    def has_ext_modules(self) -> bool:
        """Whether there are some."""
        return any((Path(__file__).parent / "src/lexicast/compiled_modules").glob("*.so"))


setup(distclass=LexicastDistribution)
