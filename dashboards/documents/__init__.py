"""One module for each subject: what analysis answers becomes a document, whatever draws it."""
