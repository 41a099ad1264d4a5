"""The packages of the wheel: those of the source tree, and the precompiled PTX, which lies at the top beside it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lowdnn", "lowdnn.*"]), "lowdnn.ptx"],
    package_dir={"lowdnn.ptx": "ptx"},
)
