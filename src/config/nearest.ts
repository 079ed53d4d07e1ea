/** What somebody may have meant by a name that there is not. */

/** A name farther off than this is another name. */
const MOST_CHANGES = 3;

/** `; did you mean timeoutMs?`, or nothing when no known name is near. */
export function didYouMean(name: string, known: Iterable<string>): string {
  let nearest: string | undefined;
  // Of a short name most of it has to be right.
  let least = Math.min(MOST_CHANGES, Math.ceil(name.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(name, candidate, least);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest === undefined ? "" : `; did you mean ${nearest}?`;
}

/** Levenshtein distance, regardless of case, given up (as `most`) once it cannot be below `most`. */
function editDistance(given: string, known: string, most: number): number {
  if (Math.abs(given.length - known.length) >= most) return most;
  const [a, b] = [given.toLowerCase(), known.toLowerCase()];
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const substitution = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(substitution, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? most;
}
