// usage: node check.mjs MANIFESTS.yaml OUT.ts
// Checks the values of objects by the schemas of kubernetes-models, and writes them as constants with types, whose
// keys tsc checks. Then what schemas do not know: that names lead somewhere, that pods have no rights that they need
// not, and that they get the time that kelp node takes to end.
import { readFileSync, writeFileSync } from "node:fs";
import yaml from "js-yaml";

const [manifests, out] = process.argv.slice(2);
const objects = yaml.loadAll(readFileSync(manifests, "utf8"));
const secrets = ["etcd", "coordinator", "shard", "worker", "operator", "reader"].map((role) => `kelp-${role}`);
let problems = 0;
function report(object, text) {
  console.log(`${object.metadata.name}: ${text}`);
  problems++;
}

async function checkValues(object) {
  const models = await import(`kubernetes-models/${object.apiVersion}`);
  try {
    new models[object.kind](object).validate();
  } catch (error) {
    report(object, error.message);
  }
}

// A name of a volume leads to an object that is there, or to a Secret that the README makes.
function checkVolume(object, volume, names) {
  const claim = volume.persistentVolumeClaim?.claimName;
  const map = volume.configMap?.name;
  const secret = volume.secret?.secretName;
  if (claim && !names.has(`PersistentVolumeClaim ${claim}`)) report(object, `there is no claim ${claim}`);
  if (map && !names.has(`ConfigMap ${map}`)) report(object, `there is no ConfigMap ${map}`);
  if (secret && !secrets.includes(secret)) report(object, `nobody makes the Secret ${secret}`);
  if (secret && volume.secret.defaultMode !== 0o440) report(object, `the files of ${secret} need the mode 0440`);
}

// What the Pod Security Standard "restricted" asks, and a root file system that nobody writes.
function checkRights(object, pod) {
  const security = pod.securityContext ?? {};
  if (security.runAsNonRoot !== true || security.runAsUser !== 10001) report(object, "runs as another user than 10001");
  if (security.fsGroup !== 10001) report(object, "fsGroup is not 10001: it cannot read its key");
  if (security.seccompProfile?.type !== "RuntimeDefault") report(object, "seccompProfile is not RuntimeDefault");
  if (pod.automountServiceAccountToken !== false) report(object, "it gets a token of the cluster's");
  if (pod.enableServiceLinks !== false) report(object, "variables of services may look like settings");
  for (const container of pod.containers) {
    const own = container.securityContext ?? {};
    if (own.readOnlyRootFilesystem !== true) report(object, "readOnlyRootFilesystem is not true");
    if (own.allowPrivilegeEscalation !== false) report(object, "allowPrivilegeEscalation is not false");
    if (own.capabilities?.drop?.join() !== "ALL") report(object, "capabilities are not dropped");
    if (!container.resources?.limits?.memory) report(object, "memory has no limit");
  }
}

// kelp node ends by itself within --grace and what it takes to end its processes.
function checkTime(object, pod) {
  for (const argument of pod.containers.flatMap((container) => container.args ?? [])) {
    const grace = /^--grace=([0-9]+)s$/.exec(argument);
    if (grace && pod.terminationGracePeriodSeconds < Number(grace[1]) + 10) {
      report(object, `terminationGracePeriodSeconds ${pod.terminationGracePeriodSeconds} is too short for ${argument}`);
    }
  }
}

function checkPod(object, names) {
  const pod = object.spec.template.spec;
  for (const volume of pod.volumes ?? []) checkVolume(object, volume, names);
  for (const container of pod.containers) {
    for (const source of container.envFrom ?? []) {
      const map = source.configMapRef.name;
      if (!names.has(`ConfigMap ${map}`)) report(object, `there is no ConfigMap ${map}`);
    }
  }
  checkRights(object, pod);
  checkTime(object, pod);
}

// The types are of core/v1 where objects say v1, and of batch/v1 without the group's domain.
function typed(object, number) {
  const from = object.apiVersion === "v1" ? "core/v1" : object.apiVersion.replace(".k8s.io", "");
  return `import { ${object.kind} as Kind${number} } from "kubernetes-types/${from}";
export const object${number}: Kind${number} = ${JSON.stringify(object, null, 1)};
`;
}

const names = new Set(objects.map((object) => `${object.kind} ${object.metadata.name}`));
for (const object of objects) {
  await checkValues(object);
  if (object.spec?.template?.spec) checkPod(object, names);
}
writeFileSync(out, objects.map(typed).join(""));
process.exit(problems === 0 ? 0 : 1);
