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
        every = self._client.get("/_dash-dependencies").json
        self._callbacks = [one for one in every if not one["clientside_function"]]  # a browser answers those itself

    def said(self, address: str) -> str:
        """All that the page of an address says at first: its layout, and the answers to what its parts then ask."""
        parts = urlsplit(address)
        values = {"url.pathname": f"/{parts.path}", "url.search": f"?{parts.query}" if parts.query else ""}
        page = self._answer(next(one for one in self._callbacks if one["output"] == _PAGE), values, "url.pathname")
        for name, value in _values(page):
            values.setdefault(name, value)
        there = {name.rpartition(".")[0] for name in values}
        answers = [page]
        for one in self._callbacks:
            inputs = [f"{item['id']}.{item['property']}" for item in one["inputs"]]
            if one["output"] != _PAGE and "url.search" in inputs and any(name in one["output"] for name in there):
                answers.append(self._answer(one, values, "url.search"))
        return json.dumps(answers, ensure_ascii=False)

    def by_itself(self, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Whatever pages ask without a person, from time to time: the id of the interval, and what is answered."""
        for one in self._callbacks:
            for item in one["inputs"]:
                if item["property"] == "n_intervals":
                    at = {"url.pathname": f"/{item['id'].partition('-')[0]}"}
                    yield item["id"], self._posted(one, values | at, f"{item['id']}.n_intervals")

    def changed(self, values: dict[str, Any], changed: str) -> list[Any]:
        """What the callbacks answer that look at `changed` (id.property), of a page with these values."""
        return [
            self._answer(one, values, changed)
            for one in self._callbacks
            if changed in {f"{item['id']}.{item['property']}" for item in one["inputs"]}
        ]

    def left(self, page: str, to: str) -> list[Any]:
        """What the parts of a page answer to the address of another page, to which a person goes."""
        parts = urlsplit(to)
        values = {"url.pathname": parts.path, "url.search": f"?{parts.query}"}
        return [
            self._answer(one, values, "url.search")
            for one in self._callbacks
            if {"id": "url", "property": "search"} in one["inputs"] and f"{page}-" in one["output"]
        ]

    def _answer(self, one: dict[str, Any], values: dict[str, Any], changed: str) -> Any:
        said = self._posted(one, values, changed)
        assert "This did not work" not in json.dumps(said), one["output"]
        return said

    def _posted(self, one: dict[str, Any], values: dict[str, Any], changed: str) -> Any:
        outputs = [_named(name) for name in one["output"].strip(".").split("...")]
        asked = {
            "output": one["output"],
            "outputs": outputs if one["output"].startswith("..") else outputs[0],
            "inputs": [_valued(item, values) for item in one["inputs"]],
            "state": [_valued(item, values) for item in one["state"]],
            "changedPropIds": [changed],
        }
        answer = self._client.post("/_dash-update-component", json=asked)
        assert answer.status_code in (200, 204), (one["output"], answer.status_code, answer.text[:500])
        return answer.json if answer.status_code == 200 else None


def _valued(item: dict[str, str], values: dict[str, Any]) -> dict[str, Any] | list[Any]:
    """A property with its value; of components that a pattern names, of which none is there, an empty list."""
    return [] if item["id"].startswith("{") else {**item, "value": values.get(f"{item['id']}.{item['property']}")}


def _named(output: str) -> dict[str, str]:
    name, _, prop = output.partition("@")[0].rpartition(".")
    return {"id": name, "property": prop}


def _values(part: Any) -> Iterator[tuple[str, Any]]:
    """The properties of all components of a layout that have an id, as `id.property`."""
    if isinstance(part, list):
        for one in part:
            yield from _values(one)
    elif isinstance(part, dict):
        props = part.get("props")
        if isinstance(props, dict) and isinstance(props.get("id"), str):
            yield from ((f"{props['id']}.{name}", value) for name, value in props.items())
        for one in part.values():
            yield from _values(one)
