"""Renders configs/helm/faser as `helm template` does, by Helm's own library, and holds what comes out against the schemas.

    render.py            compares with configs/helm/rendered; exit status 1 if a file differs or is not valid
    render.py --write    writes those files

The schemas of Kubernetes' own kinds are the package kubernetes-validate's, strict ones, for the oldest version that the chart takes and the
newest that the package has. Those of other projects' kinds are in schemas.json beside this file. Packages: requirements.txt.
"""

import copy
import json
import sys
from pathlib import Path

import helm_python.chart as helm
import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
CHARTS = HERE.parent.parent / "configs/helm"
OTHERS = json.loads((HERE / "schemas.json").read_text())
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
# What a user may write wrongly, and what the chart says then.
REFUSALS = [
    ({}, "apiKeys.existingSecret"),
    ({"apiKeys": {"required": False}, "replica": 2}, "replica"),
    ({"apiKeys": {"required": False}, "preStopSeconds": "5"}, "preStopSeconds"),
    ({"apiKeys": {"required": False}, "replicas": 2, "cache": {"type": "pvc"}}, "ReadWriteMany"),
    ({"apiKeys": {"required": False}, "autoscaling": {"enabled": True}, "cache": {"type": "pvc"}}, "ReadWriteMany"),
    ({"apiKeys": {"required": False}, "cache": {"type": "existing"}}, "cache.claim"),
]
# What the examples leave out: each must be valid too.
KEYS = {"apiKeys": {"existingSecret": "keys"}}
VARIANTS = [
    KEYS,
    {**KEYS, "config": {"server": {"tls": {"cert": "/tls/tls.crt", "key": "/tls/tls.key"}}},
     "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
     "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}], "serviceMonitor": {"enabled": True}},
    {**KEYS, "cache": {"type": "existing", "claim": "hub"}, "service": {"type": "LoadBalancer"}, "podDisruptionBudget": {"enabled": False}},
    {**KEYS, "gpus": 8, "runtimeClassName": "nvidia", "priorityClassName": "high", "nodeSelector": {"gpu": "h100"},
     "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}],
     "affinity": {"nodeAffinity": {}}, "env": [{"name": "HF_ENDPOINT", "value": "http://hub.example"}],
     "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "imagePullSecrets": [{"name": "registry"}]},
    {**KEYS, "nodes": 2, "gpus": 8, "autoscaling": {"enabled": True, "kvUsage": None},
     "inferencePool": {"enabled": True, "failureMode": "FailClose"}},
]


def rendered(chart, values):
    manifests = chart.render(values, name="faser", namespace="models")
    parts = [f"# {path}\n{text.strip()}\n" for path, text in sorted(manifests.items()) if not path.endswith("NOTES.txt")]
    # A template whose values are off renders nothing.
    return "---\n".join(part for part in parts if any(yaml.safe_load_all(part)))


def validate(resource):
    """Raises what is wrong with it, and with the picker's config in it."""
    if "endpoint-picker.yaml" in resource.get("data", {}):
        config = yaml.safe_load(resource["data"]["endpoint-picker.yaml"])
        validate(config)
        types = {plugin["type"] for plugin in config["plugins"]}
        used = {plugin["pluginRef"] for profile in config["schedulingProfiles"] for plugin in profile["plugins"]}
        assert used <= types, f"not among the plugins: {used - types}"
    kind = f"{resource['apiVersion']} {resource['kind']}"
    if kind not in OTHERS["kinds"]:
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)
        return
    jsonschema.validate(resource, {**OTHERS["kinds"][kind], "definitions": OTHERS["definitions"]})
    # Pods within are Kubernetes' own.
    if resource["kind"] == "LeaderWorkerSet":
        group = resource["spec"]["leaderWorkerTemplate"]
        for template in (group["leaderTemplate"], group["workerTemplate"]):
            pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
            pod["metadata"]["name"] = "pod"
            validate(pod)


def main():
    lint = helm.lint(CHARTS / "faser", {"apiKeys": {"required": False}}, strict=True)
    worse = [message for message in lint["messages"] if message["severity"] >= 2]
    assert not lint["errors"] and not worse, lint
    chart = helm.Chart.load(CHARTS / "faser")
    for values, word in REFUSALS:
        try:
            chart.validate_schema(values)
            chart.render(values, name="faser", namespace="models")
        except Exception as err:
            assert word in str(err), f"{values} is refused by other words: {err}"
        else:
            raise AssertionError(f"{values} is not refused")
    for values in VARIANTS:
        for resource in yaml.safe_load_all(rendered(chart, values)):
            validate(resource)
    try:
        for resource in yaml.safe_load_all(rendered(chart, {**KEYS, "env": [{"nam": "HF_ENDPOINT"}]})):
            validate(resource)
    except kubernetes_validate.ValidationError as err:
        assert "nam" in str(err), err
    else:
        raise AssertionError("the schemas take everything")
    examples = sorted((CHARTS / "values").glob("*.yaml"))
    assert len(examples) == 3, examples
    for path in examples:
        values = yaml.safe_load(path.read_text())
        chart.validate_schema(values)
        text = f"# configs/helm/faser with configs/helm/values/{path.name}, as tests/helm/render.py writes it.\n{rendered(chart, values)}"
        resources = list(yaml.safe_load_all(text))
        for resource in resources:
            validate(resource)
        to = CHARTS / "rendered" / path.name
        if "--write" in sys.argv:
            to.write_text(text)
        elif not to.exists() or to.read_text() != text:
            sys.exit(f"{to} is not what the chart renders: python3 tests/helm/render.py --write")
        print(f"{path.name}: {len(resources)} resources are valid: {', '.join(resource['kind'] for resource in resources)}")


main()
