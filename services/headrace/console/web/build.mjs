// Builds the pages into ../static, or with --tests the unit tests into build/console/tests.
// The same sources and lock always give the same bytes: names are hashes of contents.
import { build } from "esbuild";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const wanted = process.argv.slice(2);
const target = wanted.find((word) => !word.startsWith("--")) ?? join(here, "..", "static");

async function tests() {
  const out = join(here, "..", "..", "..", "..", "build", "console", "tests");
  await rm(out, { recursive: true, force: true });
  const names = (await readdir(join(here, "tests"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    absWorkingDir: here,
    entryPoints: names.map((name) => join("tests", name)),
    bundle: true,
    platform: "node",
    format: "esm",
    outdir: out,
    outExtension: { ".js": ".mjs" },
    logLevel: "warning",
  });
}

async function pages() {
  await rm(target, { recursive: true, force: true });
  await mkdir(target, { recursive: true });
  const done = await build({
    absWorkingDir: here,
    entryPoints: { console: "src/main.tsx" },
    bundle: true,
    splitting: true,
    format: "esm",
    target: "es2022",
    minify: true,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    outdir: join(target, "assets"),
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    assetNames: "[name]-[hash]",
    metafile: true,
    logLevel: "warning",
  });
  const outputs = Object.entries(done.metafile.outputs);
  const [script, entry] = outputs.find(([, output]) => output.entryPoint === "src/main.tsx");
  const firstRoute = outputs.find(([, output]) => output.entryPoint === "src/pages/overview.tsx");
  const needed = new Set([script]);
  const follow = (output) => {
    for (const { path, kind } of output.imports) {
      if (kind === "import-statement" && !needed.has(path)) {
        needed.add(path);
        follow(done.metafile.outputs[path]);
      }
    }
  };
  follow(entry);
  const shell = await readFile(join(here, "src", "index.html"), "utf8");
  const asset = (path) => `/assets/${basename(path)}`;
  const preloads = [...needed].filter((path) => path !== script).sort();
  const page = shell
    .replace("{{style}}", asset(entry.cssBundle))
    .replace("{{script}}", asset(script))
    .replace("{{preloads}}", preloads
      .map((path) => `<link rel="modulepreload" href="${asset(path)}">`)
      .join("\n"));
  await writeFile(join(target, "index.html"), page);
  // What the first route loads, for the test of its size.
  if (firstRoute) {
    needed.add(firstRoute[0]);
    follow(firstRoute[1]);
  }
  const manifest = { style: asset(entry.cssBundle), first_route: [...needed].map(asset).sort() };
  await writeFile(join(target, "manifest.json"), `${JSON.stringify(manifest, null, 1)}\n`);
}

await (wanted.includes("--tests") ? tests() : pages());
