"""What happened: outcomes, attainment statistics, tables, plots and run folders."""
