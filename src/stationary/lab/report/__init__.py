"""The report: what an experiment has to say (``content``), its figures, and the page (``render``)."""
