/** Writes the generated files under docs/. */
import { writeFileSync } from "node:fs";
import { configurationPage, schemaFile } from "./configuration_page.ts";

const docs = new URL("../../docs/", import.meta.url);
writeFileSync(new URL("baton.schema.json", docs), schemaFile());
writeFileSync(new URL("configuration.md", docs), configurationPage());
