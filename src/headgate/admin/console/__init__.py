"""The console: web pages over the same service as the REST API.

::

    rendering    templates, with their common variables, and filters for numbers, times and charts
    forms        submitted forms, and their token against forms of other sites
    pages/       a module for each part of the navigation; a page is a function that calls the service and renders
    templates/   HTML; layout.html is the frame of all pages, parts.html has shared macros
    static/      one style sheet, one script, one icon

Pages work without the script. With it, elements with ``data-live`` are refreshed, and forms with ``data-preview`` show
their effects while they are being edited.
"""

from __future__ import annotations

from headgate.admin.console.routes import error_page, handlers

__all__ = ["error_page", "handlers"]
