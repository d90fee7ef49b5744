"""The data of the experiments: small tables are bundled, large ones are downloaded, toy and radar data generated."""

from stationary.lab.data.split import Split as Split
