/** The tests of a host under versiond's names and of Baton as a child, with two threads each. */

import "../support/two_threads.ts";
import "./as_child.test.ts";
import "./versiond.test.ts";
