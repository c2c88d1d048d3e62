// The API's schemas under short names; api.d.ts is generated from openapi.yaml.
import type { components, paths } from "./api";

type Schemas = components["schemas"];
export type Acts = Schemas["Acts"];
export type AuditChange = Schemas["AuditChange"];
export type AuditTransaction = Schemas["AuditTransaction"];
export type AuditTransactions = Schemas["AuditTransactions"];
export type Backup = Schemas["Backup"];
export type Backups = Schemas["Backups"];
export type Cell = Schemas["Cell"];
export type ChangedColumn = Schemas["ChangedColumn"];
export type Column = Schemas["Column"];
export type Consumers = Schemas["Consumers"];
export type DeadLetter = Schemas["DeadLetter"];
export type Doctor = Schemas["Doctor"];
export type Done = Schemas["Done"];
export type Drops = Schemas["Drops"];
export type Event = Schemas["Event"];
export type EventAnswer = Schemas["EventAnswer"];
export type Events = Schemas["Events"];
export type Gaps = Schemas["Gaps"];
export type Hello = Schemas["Hello"];
export type History = Schemas["History"];
export type Lake = Schemas["Lake"];
export type LakeCut = Schemas["LakeCut"];
export type LakeTable = Schemas["LakeTable"];
export type LakeTables = Schemas["LakeTables"];
export type LiveEvents = Schemas["LiveEvents"];
export type Me = Schemas["Me"];
export type Overview = Schemas["Overview"];
export type Parked = Schemas["Parked"];
export type Plan = Schemas["Plan"];
export type RestorePlan = Schemas["RestorePlan"];
export type Revert = Schemas["Revert"];
export type RowHistory = Schemas["RowHistory"];
export type SchemaVersion = Schemas["SchemaVersion"];
export type Schemas_ = Schemas["Schemas"];
export type Services = Schemas["Services"];
export type SettingsAnswer = Schemas["SettingsAnswer"];
export type SinkAnswer = Schemas["SinkAnswer"];
export type SinkDraft = Schemas["SinkDraft"];
export type SinkLine = Schemas["SinkLine"];
export type Sinks = Schemas["Sinks"];
export type Snapshot = Schemas["Snapshot"];
export type Snapshots = Schemas["Snapshots"];
export type SqlCatalog = Schemas["SqlCatalog"];
export type SqlRows = Schemas["SqlRows"];
export type SqlRun = Schemas["SqlRun"];
export type SqlRunAnswer = Schemas["SqlRunAnswer"];
export type Station = Schemas["Station"];
export type TableAnswer = Schemas["TableAnswer"];
export type TableLine = Schemas["TableLine"];
export type Tables = Schemas["Tables"];
export type Trace = Schemas["Trace"];
export type Transaction = Schemas["Transaction"];
export type Waterline = Schemas["Waterline"];

type Filled<Path extends string> = Path extends `${infer Before}{${string}}${infer After}`
  ? `${Before}${string}${Filled<After>}`
  : Path;
type Below<Path extends string> = Path extends `/api/v1${infer Rest}` ? Filled<Rest> : never;
/** A path that the description has. */
export type ApiPath = Below<keyof paths & string>;
