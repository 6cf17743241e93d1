"""What pyproject.toml cannot say: the benchmarks stand beside the package and are installed with it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("src"), "talos_benchmarks"],
    package_dir={"": "src", "talos_benchmarks": "benchmarks"},
)
