"""The data of the experiments: small tables are bundled, large ones are downloaded, toys and radar are generated."""

from stationary.lab.data.split import Split as Split
