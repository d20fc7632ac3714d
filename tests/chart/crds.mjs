// Reads a JSON list of objects, and checks those of Prometheus's operator against their definitions.
import { readFileSync } from "node:fs";

const operator = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  if (!object.apiVersion.startsWith("monitoring.coreos.com/")) continue;
  const { [object.kind]: Kind } = await import(`${operator}/${object.kind}`);
  new Kind(object).validate();
  console.log(object.kind);
}
