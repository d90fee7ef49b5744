"""The data of the experiments: small tables are bundled, one is generated."""

from stationary.data.split import Split as Split
