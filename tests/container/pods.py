#!/usr/bin/env python3
"""Pods of the manifests in deploy/kubernetes/base, as podman 4.3 can play them.

What Kubernetes' controllers and the kubelet do is done here: a pod of a StatefulSet or an Indexed Job gets its name,
variables get their values, and volumes become folders of this machine. All else of a pod is as the manifests have it.

usage: pods.py BASE_FOLDER IMAGE FOLDER ETCD_ADDRESS WORKLOAD[-NUMBER]...

Prints the pods. FOLDER has a folder for each claim and Secret, and job/ and tmp/. Where WORKLOAD has a number, that
is the pod's (kelp-shard-1); kelp-submit and kelp-wait have none.
"""
import os
import re
import sys

import yaml


def load(base):
    """The workloads by name, and the variables that the ConfigMap of all pods has."""
    with open(os.path.join(base, "kustomization.yaml"), encoding="utf-8") as file:
        kustomization = yaml.safe_load(file)
    workloads = {}
    for resource in kustomization["resources"]:
        with open(os.path.join(base, resource), encoding="utf-8") as file:
            for item in yaml.safe_load_all(file):
                if item["kind"] in ("StatefulSet", "Job"):
                    workloads[item["metadata"]["name"]] = item
    told = {}
    for generator in kustomization["configMapGenerator"]:
        told[generator["name"]] = dict(line.split("=", 1) for line in generator.get("literals", []))
    return workloads, told


def expand(text, variables):
    return re.sub(r"\$\(([A-Z_]+)\)", lambda match: variables[match.group(1)], text)


def variables_of(container, told, fields):
    variables = {}
    for source in container.pop("envFrom", []):
        variables.update(told[source["configMapRef"]["name"]])
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            variables[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            variables[entry["name"]] = expand(entry["value"], variables)
    return variables


def on_this_machine(volume, pod_name, folder):
    """The volume as a folder. A Secret's is as the kubelet makes it: its files are root's, readable for fsGroup."""
    name = volume["name"]
    if "persistentVolumeClaim" in volume:
        path = os.path.join(folder, volume["persistentVolumeClaim"]["claimName"])
    elif "secret" in volume:
        path = os.path.join(folder, "secrets", volume["secret"]["secretName"])
    elif "configMap" in volume:
        path = os.path.join(folder, volume["configMap"]["name"])
    else:
        path = os.path.join(folder, "empty", pod_name + "." + name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}


def make_pod(workload, pod_name, image, folder, etcd_address, told):
    template = workload["spec"]["template"]
    spec = template["spec"]
    for key in ("topologySpreadConstraints", "automountServiceAccountToken", "enableServiceLinks"):
        spec.pop(key, None)
    spec["restartPolicy"] = "Never"  # the test is the controller
    spec["hostAliases"] = [{"ip": etcd_address, "hostnames": ["kelp-etcd"]}]
    volumes = list(spec.get("volumes", []))
    volumes += [{"name": claim["metadata"]["name"]} for claim in workload["spec"].get("volumeClaimTemplates", [])]
    spec["volumes"] = [on_this_machine(volume, pod_name, folder) for volume in volumes]
    for container in spec["containers"]:
        variables = variables_of(container, told, {"metadata.name": pod_name, "spec.nodeName": "node-of-" + pod_name})
        container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
        container["args"] = [expand(argument, variables) for argument in container.get("args", [])]
        container["image"] = image
        container["imagePullPolicy"] = "Never"
        for key in ("readinessProbe", "livenessProbe", "ports"):
            container.pop(key, None)
        container["resources"].pop("requests", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name, "labels": template["metadata"]["labels"]},
            "spec": spec}


def main():
    base, image, folder, etcd_address = sys.argv[1:5]
    pods = []
    for pod_name in sys.argv[5:]:
        workloads, told = load(base)
        workload = workloads[re.sub(r"-[0-9]+$", "", pod_name)]
        pods.append(make_pod(workload, pod_name, image, folder, etcd_address, told))
    yaml.safe_dump_all(pods, sys.stdout)


main()
