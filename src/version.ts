/** Baton's own version, the one of package.json (a test compares them). */
export const BATON_VERSION = "0.1.0";
