"""
Docstrings are written in Markdown, as in transformers, and autodoc reads reStructuredText. This turns the one into the
other: code spans, links, fenced code and emphasis. Every other character means itself.
"""

import re

from sphinx.application import Sphinx


_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_SPAN = re.compile(
    r"\[`(?P<cross>[^`\n]+)`\]"  # [`Name`], which links to it
    r"|``(?P<literal>[^`\n]+)``"
    r"|`(?P<code>[^`\n]+)`"
    r"|\[(?P<text>[^\]\n]+)\]\((?P<address>https?://[^)\s]+)\)"
    r"|(?P<bold>\*\*[^*\s](?:[^*\n]*[^*\s])?\*\*)"
    r"|(?P<italic>(?<![\w*])\*[^*\s](?:[^*\n]*[^*\s])?\*(?![\w*]))"
)
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def convert(lines: list[str]) -> list[str]:
    """Markdown to reStructuredText, line by line."""
    converted: list[str] = []
    indent = None  # of the fence that is open
    waiting = ""  # a line with a code span that ends on the next one
    for line in lines:
        fence = _FENCE.match(line)
        if indent is None and not fence:
            line, waiting = f"{waiting} {line.strip()}" if waiting else line, ""
            if line.count("`") % 2 and line.strip():
                waiting = line
                continue
        if indent is None and fence:
            indent = fence[1]
            converted += ["", f"{indent}.. code-block:: {fence[2] or 'text'}", ""]
        elif indent is not None and fence:
            indent = None
            converted.append("")
        elif indent is not None:
            converted.append(f"    {line}" if line.strip() else "")
        else:
            converted.append(_inline(line))
    return [*converted, _inline(waiting)] if waiting else converted


def _inline(line: str) -> str:
    pieces, end = [], 0
    for match in _SPAN.finditer(line):
        pieces += [_plain(line[end : match.start()]), _span(match, line)]
        end = match.end()
    return "".join([*pieces, _plain(line[end:])])


def _span(match: re.Match, line: str) -> str:
    if match["bold"] or match["italic"]:
        return match[0]
    if match["text"]:
        return f"`{match['text']} <{match['address']}>`__"
    code = match["cross"] or match["literal"] or match["code"]
    code = f":py:obj:`{code}`" if _NAME.fullmatch(code) else f"``{code}``"
    # reStructuredText wants a space or punctuation around code.
    before = "\\ " if re.match(r"[\w.]", line[match.start() - 1 : match.start()]) else ""
    after = "\\ " if re.match(r"\w", line[match.end() : match.end() + 1]) else ""
    return before + code + after


def _plain(text: str) -> str:
    text = re.sub(r"([\\|`]|\*+|(?<=\w)_(?!\w))", lambda match: "".join(f"\\{c}" for c in match[0]), text)
    return re.sub(r"^(\s*)\\\*(?=\s)", r"\1*", text)  # a star at the beginning of a line is a list


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = convert(lines)


def _without_signature(app: Sphinx, what: str, name: str, *args: object) -> tuple[str, None] | None:
    """That of a config has forty arguments, which its docstring explains."""
    return ("", None) if what == "class" and name.endswith(("Config", "Arguments")) else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", _without_signature)
    app.connect("autodoc-process-docstring", _process, priority=400)  # before napoleon, which reads `Args:`
    return {"parallel_read_safe": True, "parallel_write_safe": True}
