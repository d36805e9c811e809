"""The OpenAPI documents of both planes are valid, and say enough for a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from headgate.admin import api
from headgate.reference import decision_api

DOCUMENTS = {"admin": api.document, "decision": decision_api.document}
Operation = tuple[str, dict[str, Any]]


@pytest.fixture(params=DOCUMENTS)
def found(request: pytest.FixtureRequest) -> Any:
    return msgspec.json.decode(DOCUMENTS[request.param]())


def operations(found: Any) -> Iterator[Operation]:
    for path, item in found["paths"].items():
        for method, operation in item.items():
            yield f"{method} {path}", operation


def test_a_document_is_valid(found: Any) -> None:
    OpenAPIV31SpecValidator(found).validate()
    assert found["openapi"].startswith("3.1.")


def test_operations_are_grouped_and_have_names_and_summaries(found: Any) -> None:
    groups = {tag["name"]: tag["description"] for tag in found["tags"]}
    assert all(groups.values())
    names = []
    for where, operation in operations(found):
        (group,) = operation["tags"]
        assert group in groups, where
        assert operation["summary"], where
        names.append(operation["operationId"])
    assert len(set(names)) == len(names) > 10


def test_every_operation_has_examples_that_fit(found: Any) -> None:
    """Of what is sent, of what is answered, and of errors."""
    for where, operation in operations(found):
        contents = operation.get("requestBody", {}).get("content", {})
        assert all(examples(content) for content in list(contents.values())[:1]), where
        answers = [resolved(found, answer) for answer in operation["responses"].values()]
        assert all(examples(content) for answer in answers for content in list(answer.get("content", {}).values())[:1])
        for kind, content in [
            *contents.items(),
            *(each for answer in answers for each in answer.get("content", {}).items()),
        ]:
            for example in examples(content) if "json" in kind else ():
                schema = {**content["schema"], "components": found["components"]}
                faults = [fault.message for fault in Draft202012Validator(schema).iter_errors(example)]
                assert not faults, (where, faults)


def examples(content: Any) -> list[Any]:
    if "example" in content:
        return [content["example"]]
    return [each["value"] for each in content.get("examples", {}).values()]


def resolved(found: Any, answer: Any) -> Any:
    return found["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
