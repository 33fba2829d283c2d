"""Tables, figures and the report: everything here reads the files of finished runs and writes documents."""
