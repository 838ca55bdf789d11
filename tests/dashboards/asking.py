"""Asks a dashboard what a browser would ask when it opens an address, and gathers what the pages say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from dash import Dash

from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.store import Store

_PAGE = "..page.children...navigation.children...problem.children.."


class Asked:
    """A dashboard, without a browser; over a store, one that is made for it."""

    def __init__(self, of: Store | Dash) -> None:
        app = make_app(Reading(of)) if isinstance(of, Store) else of
        self._client: Any = app.server.test_client()
        dependencies = self._client.get("/_dash-dependencies").json
        self._callbacks = [
            callback for callback in dependencies if not callback["clientside_function"]
        ]  # a browser answers those itself

    def said(self, address: str) -> str:
        """All that the page of an address says at first: its layout, and the answers to what its parts then ask."""
        parts = urlsplit(address)
        values = {"url.pathname": f"/{parts.path}", "url.search": f"?{parts.query}" if parts.query else ""}
        page = self._answer(
            next(callback for callback in self._callbacks if callback["output"] == _PAGE), values, "url.pathname"
        )
        for name, value in _values(page):
            values.setdefault(name, value)
        ids = {name.rpartition(".")[0] for name in values}
        answers = [page]
        for callback in self._callbacks:
            inputs = [f"{field['id']}.{field['property']}" for field in callback["inputs"]]
            if (
                callback["output"] != _PAGE
                and "url.search" in inputs
                and any(name in callback["output"] for name in ids)
            ):
                answers.append(self._answer(callback, values, "url.search"))
        return json.dumps(answers, ensure_ascii=False)

    def by_itself(self, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Whatever pages ask without a person, from time to time: the id of the interval, and what is answered."""
        for callback in self._callbacks:
            for field in callback["inputs"]:
                if field["property"] == "n_intervals":
                    at = {"url.pathname": f"/{field['id'].partition('-')[0]}"}
                    yield field["id"], self._posted(callback, values | at, f"{field['id']}.n_intervals")

    def changed(self, values: dict[str, Any], changed: str) -> list[Any]:
        """What the callbacks answer that look at `changed` (id.property), of a page with these values."""
        return [
            self._answer(callback, values, changed)
            for callback in self._callbacks
            if changed in {f"{field['id']}.{field['property']}" for field in callback["inputs"]}
        ]

    def filled(self, part: str, values: dict[str, Any], changed: str) -> dict[str, Any]:
        """By id, what is answered to the parts of a page that are filled together with `part`."""
        callback = next(callback for callback in self._callbacks if f"{part}." in callback["output"])
        return dict(self._answer(callback, values, changed)["response"])

    def left(self, page: str, to: str) -> list[Any]:
        """What the parts of a page answer to the address of another page, to which a person goes."""
        parts = urlsplit(to)
        values = {"url.pathname": parts.path, "url.search": f"?{parts.query}"}
        return [
            self._answer(callback, values, "url.search")
            for callback in self._callbacks
            if {"id": "url", "property": "search"} in callback["inputs"] and f"{page}-" in callback["output"]
        ]

    def _answer(self, callback: dict[str, Any], values: dict[str, Any], changed: str) -> Any:
        reply = self._posted(callback, values, changed)
        assert "This did not work" not in json.dumps(reply), callback["output"]
        return reply

    def _posted(self, callback: dict[str, Any], values: dict[str, Any], changed: str) -> Any:
        outputs = [_named(name) for name in callback["output"].strip(".").split("...")]
        request = {
            "output": callback["output"],
            "outputs": outputs if callback["output"].startswith("..") else outputs[0],
            "inputs": [_valued(field, values) for field in callback["inputs"]],
            "state": [_valued(field, values) for field in callback["state"]],
            "changedPropIds": [changed],
        }
        answer = self._client.post("/_dash-update-component", json=request)
        assert answer.status_code in (200, 204), (callback["output"], answer.status_code, answer.text[:500])
        return answer.json if answer.status_code == 200 else None


def _valued(field: dict[str, str], values: dict[str, Any]) -> dict[str, Any] | list[Any]:
    """A property with its value; of components that a pattern names, of which none is there, an empty list."""
    return [] if field["id"].startswith("{") else {**field, "value": values.get(f"{field['id']}.{field['property']}")}


def _named(output: str) -> dict[str, str]:
    name, _, prop = output.partition("@")[0].rpartition(".")
    return {"id": name, "property": prop}


def _values(part: Any) -> Iterator[tuple[str, Any]]:
    """The properties of all components of a layout that have an id, as `id.property`."""
    if isinstance(part, list):
        for inner in part:
            yield from _values(inner)
    elif isinstance(part, dict):
        props = part.get("props")
        if isinstance(props, dict) and isinstance(props.get("id"), str):
            yield from ((f"{props['id']}.{name}", value) for name, value in props.items())
        for inner in part.values():
            yield from _values(inner)
