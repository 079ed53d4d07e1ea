/** Imported first, it runs every Baton of the tests that come after it with two threads. */

import process from "node:process";

process.env.TEST_WORKERS = "2";
