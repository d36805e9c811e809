"""The console: pages for people, over the service that the REST API stands on, and nothing else.

::

    rendering    templates and what they know: who looks, numbers with units, times, charts
    forms        what a form has sent, with the token that shows that it was ours
    pages/       a module for each part of the navigation; a page is a function that asks the service and renders
    templates/   HTML; layout.html is around all of them, parts.html has what they share
    static/      one style sheet, one script, one icon

Pages work without the script. With it, those that say ``data-live`` refresh parts of themselves, and forms that say
``data-preview`` show what they would do while somebody types.
"""

from __future__ import annotations

from headgate.admin.console.routes import handlers, shown

__all__ = ["handlers", "shown"]
