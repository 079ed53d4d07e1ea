/**
 * Several lists of peers as one: what the configuration names, and what is added to it at run time.
 */

import { type Discovery, PeerSet, type PeerView } from "./peer_view.ts";

/**
 * The members of all sources, each once. Where two list the same URL the earlier source's word
 * counts, so that nobody can make a peer a candidate that the first source says is leaving.
 */
export function joinedDiscovery(sources: readonly Discovery[]): Discovery {
  const set = new PeerSet();
  const join = (): void => {
    const byUrl = new Map<string, PeerView>();
    for (const source of sources) {
      for (const peer of source.current()) {
        if (!byUrl.has(peer.url)) byUrl.set(peer.url, peer);
      }
    }
    set.replace(byUrl.values());
  };
  const forget = sources.map((source) => source.onChange(join));
  join();
  return {
    async start() {
      await Promise.all(sources.map((source) => source.start()));
      join();
    },
    stop() {
      for (const end of forget) end();
      for (const source of sources) source.stop();
    },
    current: () => set.current,
    onChange: (listener) => set.onChange(listener),
  };
}
