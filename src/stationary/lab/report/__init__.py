"""The report: its contents (``content``), its figures (``figures``), and how both become a page (``render``)."""
