"""The types of columns: other engines read them, no sum wraps, and lists and records are what they say."""

from __future__ import annotations

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.schema import TABLES, arrow_rows, arrow_schema, texts_of

BEGAN = 1_790_000_000_123_456_789  # ns, not a whole microsecond


def leaves(kind: pa.DataType) -> list[pa.DataType]:
    """The plain types within a type."""
    if not pa.types.is_nested(kind):
        return [kind]
    return [leaf for at in range(kind.num_fields) for leaf in leaves(kind.field(at).type)]


def test_a_table_has_the_types_that_its_columns_say(store: Store) -> None:
    for spec in TABLES:
        plain = {leaf for field in arrow_schema(spec.name) for leaf in leaves(field.type)}
        assert plain <= {pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.bool_(), pa.timestamp("us")}, spec.name
        described = store.sql(f"describe {spec.name}").to_pylist()
        spelled = {row["column_name"]: row["column_type"].replace('"', "") for row in described}
        assert spelled == {column.name: column.type.replace('"', "") for column in spec.columns}, spec.name
    assert arrow_schema("telemetry_minutes").field("power_mw_mean").type == pa.float64(), "a mean has a fraction"


def test_times_in_ns_are_taken_and_floored_to_us(store: Store) -> None:
    one = {"cluster": ["c"], "power_mw": [1]}
    given = pa.table({"ts": pa.array([BEGAN], pa.timestamp("ns")), "gpu": ["a"], **one})
    store.append({"telemetry": given}, "appended")
    assert store.correct(given.set_column(3, "power_mw", pa.array([2])), "corrected") == 1
    with store.journal("n") as journal:
        journal.append(BEGAN, ["c"], {"cluster": "c", "power_mw": [1]})
    rows = store.sql("select gpu, epoch_ns(ts) as ns, power_mw from telemetry order by gpu").to_pylist()
    at = BEGAN // 1000 * 1000
    assert rows == [{"gpu": "a", "ns": at, "power_mw": 2}, {"gpu": "c", "ns": at, "power_mw": 1}]


def test_lists_records_and_maps_are_read_as_such(store: Store) -> None:
    found = {
        "gpus": [[{"name": "n1/0", "gpu": "GPU-a"}], None],
        "workloads": [["gemm", 'a "name"'], []],
        "causes": [[{"what": "heat", "pct": 2.5, "low_pct": None, "high_pct": 3.0}], None],
    }
    store.append({"verdicts": arrow_rows("verdicts", {"place": [0, 1], **found})}, "a")
    assert store.scan("verdicts").sort("place").select(*found).collect().to_dict(as_series=False) == found
    run = {"conditions": [{"clock": "locked", "seed": 7, "parameters": {"m": 4096.0}}], "versions": [{"driver": "570"}]}
    store.append({"runs": arrow_rows("runs", {"run_id": ["r"], **run})}, "b")
    (row,) = store.sql(
        "select conditions.seed, conditions.parameters['m'] as m, versions.driver, conditions.suite from runs"
    ).to_pylist()
    assert row == {"seed": 7, "m": 4096.0, "driver": "570", "suite": None}


def test_a_field_that_a_record_lacks_is_an_error_and_not_lost() -> None:
    with pytest.raises(StoreError, match="no field colour"):
        arrow_rows("runs", {"run_id": ["r"], "conditions": [{"clock": "free", "colour": "red"}]})


def test_values_of_any_kind_are_texts_of_a_map() -> None:
    values = {"b": 1.5, "a": "x", "no": None, "many": ("p", "q"), "deep": {"er": {"on": True}}}
    assert texts_of(values) == {"a": "x", "b": "1.5", "no": None, "many": "p, q", "deep.er.on": "true"}
