//! The same work as scripts/lib/index_load.ts, done by Dynamo's single-threaded radix tree: the
//! index bench's peer. Prints one line of JSON.
//!
//!   dynamo-index <blocks> <workers>

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::*;
use std::time::Instant;

const BLOCK_SIZE: usize = 16;
const CHAIN: usize = 256;
const PER_EVENT: usize = 64;
const OPEN_CHAINS: usize = 512;

fn fill_tokens(tokens: &mut [u32], chain: u32, first: usize) {
    let start = (first * BLOCK_SIZE) as u32;
    for (i, token) in tokens.iter_mut().enumerate() {
        let mixed = (chain ^ (start + i as u32))
            .wrapping_mul(0x85ebca77)
            .wrapping_add(0x27d4eb2f);
        *token = (mixed ^ (mixed >> 15)) % 150_000;
    }
}

fn engine_hash(chain: u32, block: usize) -> u64 {
    let n = chain.wrapping_mul(CHAIN as u32).wrapping_add(block as u32 + 1);
    let low = n.wrapping_mul(0x9e3779b1) as u64;
    let high = (n.wrapping_mul(0x85ebca6b) ^ (n >> 7)) as u64;
    low | (high << 32)
}

fn hashes_of(tokens: &[u32]) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK_SIZE as u32, BlockHashOptions::default())
}

/// From a decoded event (tokens, engine hashes) to the tree: hash, build, apply.
fn store(tree: &mut RadixTree, worker: u64, chain: u32, first: usize, tokens: &[u32], id: u64) {
    let blocks = hashes_of(tokens)
        .into_iter()
        .enumerate()
        .map(|(i, tokens_hash)| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(engine_hash(chain, first + i)),
            tokens_hash,
            mm_extra_info: None,
        })
        .collect();
    let parent_hash =
        (first > 0).then(|| ExternalSequenceBlockHash(engine_hash(chain, first - 1)));
    let data = KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash,
        start_position: None,
        blocks,
    });
    let event = KvCacheEvent { event_id: id, data, dp_rank: 0 };
    tree.apply_event(RouterEvent::new(worker, event)).expect("a parent was stored before");
}

fn rss_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    pages * 4096.0
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (blocks, workers) = (args[0], args[1]);
    let chains = blocks.div_ceil(CHAIN);
    let mut tree = RadixTree::new();
    let rss_before = rss_bytes();
    let mut id = 0;
    let mut apply_s = 0.0;
    let mut longest_s: f64 = 0.0;
    let mut batch: Vec<(u32, usize, Vec<u32>)> = Vec::new();
    let mut apply = |tree: &mut RadixTree, batch: &mut Vec<(u32, usize, Vec<u32>)>| {
        let start = Instant::now();
        let mut before = start;
        for (chain, first, tokens) in batch.iter() {
            id += 1;
            store(tree, *chain as u64 % workers as u64, *chain, *first, tokens, id);
            let now = Instant::now();
            longest_s = longest_s.max((now - before).as_secs_f64());
            before = now;
        }
        apply_s += start.elapsed().as_secs_f64();
        batch.clear();
    };
    for base in (0..chains).step_by(OPEN_CHAINS) {
        let end = chains.min(base + OPEN_CHAINS);
        for first in (0..CHAIN).step_by(PER_EVENT) {
            for chain in base..end {
                let mut tokens = vec![0; PER_EVENT * BLOCK_SIZE];
                fill_tokens(&mut tokens, chain as u32, first);
                batch.push((chain as u32, first, tokens));
                if batch.len() == 256 {
                    apply(&mut tree, &mut batch);
                }
            }
        }
    }
    apply(&mut tree, &mut batch);
    let rss_after = rss_bytes();

    let mut state: u32 = 12345;
    let mut look_s = 0.0;
    let mut found = 0;
    let mut prompts = vec![vec![0u32; CHAIN * BLOCK_SIZE]; 64];
    for _ in 0..400 {
        for tokens in prompts.iter_mut() {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            fill_tokens(tokens, state % chains as u32, 0);
        }
        let start = Instant::now();
        for tokens in &prompts {
            let scores = tree.find_matches(hashes_of(tokens), false);
            found += scores.scores.values().copied().max().unwrap_or(0) as usize;
        }
        look_s += start.elapsed().as_secs_f64();
        if look_s > 0.7 {
            break;
        }
    }
    let stored = (chains * CHAIN) as f64;
    println!(
        "{{\"blocks\":{},\"applied_per_s\":{:.0},\"longest_ms\":{:.3},\"looked_up_per_s\":{:.0},\"rss_bytes_each\":{:.1}}}",
        stored,
        stored / apply_s,
        longest_s * 1000.0,
        found as f64 / look_s,
        (rss_after - rss_before) / stored,
    );
}
