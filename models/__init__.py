"""The numbers: settings, schemas, classifiers, encoders, objectives and solvers. No files, no Prefect, no printing."""
