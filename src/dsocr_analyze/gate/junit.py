"""A check as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from dsocr_analyze.escaping import visible_lines
from dsocr_analyze.gate.document import Check, Verdict, WorkloadCheck
from dsocr_analyze.gate.wording import equal_text, heads

__all__ = ["check_junit"]


def check_junit(check: Check) -> str:
    """One suite per workload, with one case per limit and one for all figures without a limit."""
    root = ET.Element("testsuites", name="dsocr-analyze check")
    suites = [_suite(each) for each in check.workloads]
    if check.warnings:
        suites.append(_warnings("all workloads", check.warnings))
    root.extend(suites)
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.set("errors", "0")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _suite(workload: WorkloadCheck) -> ET.Element:
    cases = [_case(workload, each) for each in workload.verdicts]
    if workload.is_compared and not workload.changed:
        name = f"all {equal_text(workload)}"
        cases.append(_element("testcase", classname=workload.name, name=name))
    failures = sum(case.find("failure") is not None for case in cases)
    suite = _element(
        "testsuite", name=workload.name, tests=str(len(cases)), failures=str(failures), errors="0"
    )
    suite.extend(cases)
    said = [*heads(workload), *(f"warning: {each}" for each in workload.warnings)]
    if said:
        ET.SubElement(suite, "system-out").text = visible_lines("\n".join(said))
    return suite


def _case(workload: WorkloadCheck, verdict: Verdict) -> ET.Element:
    case = _element("testcase", classname=workload.name, name=f"{verdict.key}: {verdict.rule}")
    if verdict.outcome == "failed":
        failure = ET.SubElement(case, "failure", message=visible_lines(verdict.message))
        failure.text = visible_lines(verdict.message)
    elif verdict.outcome == "warned":
        ET.SubElement(case, "system-out").text = visible_lines(f"warning: {verdict.message}")
    return case


def _warnings(name: str, warnings: tuple[str, ...]) -> ET.Element:
    suite = _element("testsuite", name=name, tests="0", failures="0", errors="0")
    text = "\n".join(f"warning: {each}" for each in warnings)
    ET.SubElement(suite, "system-out").text = visible_lines(text)
    return suite


def _element(tag: str, **attributes: str) -> ET.Element:
    return ET.Element(tag, {name: visible_lines(value) for name, value in attributes.items()})
