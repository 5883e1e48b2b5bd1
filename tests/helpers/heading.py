"""What the first lines of an attack's or a control's source say of it: `// NAME: WORDS`."""

import re


def directive(text: str, name: str, default: str = "") -> str:
    """The words behind that name; several where a kernel is tried on several problems, say."""
    found = re.search(rf"^// {name}: (.+)$", text, re.MULTILINE)
    return found.group(1) if found else default
