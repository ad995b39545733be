# SPDX-License-Identifier: Apache-2.0
"""Answers as tables: of pandas, and for notebooks."""
import dataclasses
import html
from typing import Any, List, Optional, Tuple

# A notebook shows the first rows; to_pandas() has all.
_MOST_ROWS = 100


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and dataclasses.is_dataclass(value[0])


def _rows(answer: Any, name: Optional[str]) -> Tuple[str, List[Any]]:
    lists = [field.name for field in dataclasses.fields(answer) if isinstance(getattr(answer, field.name), list)]
    if name is not None and name not in lists:
        raise ValueError(f"{type(answer).__name__} has no list {name!r}; it has {', '.join(lists) or 'none'}")
    if name is None:
        name = answer._table or next((one for one in lists if _is_rows(getattr(answer, one))), lists[0] if lists else None)
    if name is None:
        raise ValueError(f"{type(answer).__name__} has no list of rows")
    return name, getattr(answer, name)


def frame(answer: Any, name: Optional[str]) -> Any:
    import pandas
    _, rows = _rows(answer, name)
    if not rows or not dataclasses.is_dataclass(rows[0]):
        return pandas.DataFrame(rows)
    columns = [field.name for field in dataclasses.fields(rows[0])]
    return pandas.DataFrame([[getattr(row, column) for column in columns] for row in rows], columns=columns)


def _text(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return html.escape(text if len(text) <= 200 else text[:199] + "\N{HORIZONTAL ELLIPSIS}")


def page(answer: Any) -> str:
    """Returns the plain members, then the rows that to_pandas() takes; every text is escaped."""
    parts = [f"<b>fsdp_ckpt.{type(answer).__name__}</b><table>"]
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if value is not None and isinstance(value, (str, int, float)):
            parts.append(f"<tr><th style='text-align:left'>{field.name}</th><td style='text-align:left'>{_text(value)}</td></tr>")
    parts.append("</table>")
    try:
        name, rows = _rows(answer, None)
    except ValueError:
        rows = []
    if _is_rows(rows):
        columns = [field.name for field in dataclasses.fields(rows[0])
                   if any(getattr(row, field.name) is not None for row in rows[:_MOST_ROWS])]
        parts.append(f"<table><caption>{name}: {len(rows):,}</caption><tr>")
        parts += [f"<th>{column}</th>" for column in columns]
        parts.append("</tr>")
        for row in rows[:_MOST_ROWS]:
            parts += ["<tr>", *(f"<td>{_text(getattr(row, column))}</td>" for column in columns), "</tr>"]
        parts.append("</table>")
        if len(rows) > _MOST_ROWS:
            parts.append(f"and {len(rows) - _MOST_ROWS:,} more; to_pandas() has them")
    return "".join(parts)
