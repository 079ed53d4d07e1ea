/** The tests of pools once more, with two threads of the data path. */

import "../support/two_threads.ts";
import "./pool.test.ts";
import "./pool_health.test.ts";
import "./pool_versions.test.ts";
