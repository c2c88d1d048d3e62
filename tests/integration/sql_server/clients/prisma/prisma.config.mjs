// Prisma's schema engine as WebAssembly, over node-postgres: its native engine comes from a place
// that is no package registry. The adapter has no form for the catalog's types "char" and name.
import { PrismaPg } from "@prisma/adapter-pg";
import { ColumnTypeEnum } from "@prisma/driver-adapter-utils";
import pg from "pg";
import { defineConfig } from "prisma/config";

const CHAR = 18;
const NAME = 19;
const TEXT = 25;
// No query of the catalog has a column of this type.
const JSONB = 3802;

class Pool extends pg.Pool {
  async query(...given) {
    const result = await super.query(...given);
    for (const field of result.fields) {
      if (field.dataTypeID === NAME) field.dataTypeID = TEXT;
      if (field.dataTypeID === CHAR) field.dataTypeID = JSONB;
    }
    return result;
  }
}

class Adapter extends PrismaPg {
  async connect() {
    const connection = await super.connect();
    const queryRaw = connection.queryRaw.bind(connection);
    connection.queryRaw = async (query) => {
      const result = await queryRaw(query);
      result.columnTypes = result.columnTypes.map((type) =>
        type === ColumnTypeEnum.Json ? ColumnTypeEnum.Character : type,
      );
      return result;
    };
    return connection;
  }
}

export default defineConfig({
  experimental: { adapter: true },
  engine: "js",
  schema: "./schema.prisma",
  adapter: async () => new Adapter(new Pool()),
});
