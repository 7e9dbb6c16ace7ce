"""An index of what a daemon has cached, from its KV events alone, written from vLLM's published format
(vllm/distributed/kv_events.py, examples/online_serving/kv_events_subscriber.py): both the maps of today and the arrays
before June 2026.

    python3 consumer.py ENDPOINT REPLAY_ENDPOINT TOPIC

Reads a JSON object per line: {"until": SEQUENCE, "prompts": [[TOKEN, ...], ...]}. Once it has heard the batch of that
number it prints what it knows: {"blocks": [whole blocks of each prompt that are cached], "stored", "removed",
"cleared", "kinds", "rank", "replayed", "block_size"}. Anything that is not as vLLM has it ends it with a traceback.
"""

import json
import sys
import time

import msgpack
import zmq

PATIENCE_S = 60
END = 2**64 - 1
STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"]
REMOVED = ["block_hashes", "medium"]


class Index:
    def __init__(self):
        self.blocks = {}  # hash: (hash of the parent or None, tokens)
        self.last = -1
        self.seen = {"stored": 0, "removed": 0, "cleared": 0, "replayed": 0}
        self.kinds, self.rank, self.block_size = set(), None, None

    def hear(self, topic, sequence, payload, wanted_topic):
        assert topic == wanted_topic and len(sequence) == 8, (topic, sequence)
        sequence = int.from_bytes(sequence, "big")
        if sequence <= self.last:
            return
        assert sequence == self.last + 1, f"{sequence} follows {self.last}"
        ts, events, rank = msgpack.unpackb(payload)
        assert isinstance(ts, float) and abs(ts - time.time()) < 3600 and events, (ts, events)
        assert self.rank in (None, rank), (self.rank, rank)
        self.last, self.rank = sequence, rank
        for event in events:
            self.take(event)

    def take(self, event):
        self.kinds.add("array" if isinstance(event, list) else "map")
        if isinstance(event, list):
            names = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": []}[event[0]]
            assert len(event) == 1 + len(names), event
            event = {"type": event[0], **dict(zip(names, event[1:]))}
        kind = event.pop("type")
        if kind == "AllBlocksCleared":
            assert not event, event
            self.seen["cleared"] += 1
            self.blocks.clear()
        elif kind == "BlockRemoved":
            assert list(event) == REMOVED and event["medium"] == "GPU", event
            for block in event["block_hashes"]:
                self.seen["removed"] += 1
                del self.blocks[block]
        elif kind == "BlockStored":
            assert list(event) == STORED and event["medium"] == "GPU", event
            assert event["lora_id"] is None and event["lora_name"] is None, event
            size, tokens, parent = event["block_size"], event["token_ids"], event["parent_block_hash"]
            assert len(tokens) == size * len(event["block_hashes"]), event
            assert self.block_size in (None, size)
            self.block_size = size
            for at, block in enumerate(event["block_hashes"]):
                assert isinstance(block, int) and block not in self.blocks, block
                assert parent is None or parent in self.blocks, parent
                self.blocks[block] = (parent, tuple(tokens[at * size : (at + 1) * size]))
                self.seen["stored"] += 1
                parent = block
        else:
            raise AssertionError(kind)

    def cached(self, prompt):
        """Whole blocks of a prompt; the last token is always computed, so the block that it ends is not counted."""
        if self.block_size is None:
            return 0
        children = {entry: block for block, entry in self.blocks.items()}
        assert len(children) == len(self.blocks), "the same content twice"
        found, parent = 0, None
        while (found + 1) * self.block_size < len(prompt):
            chunk = tuple(prompt[found * self.block_size : (found + 1) * self.block_size])
            parent = children.get((parent, chunk))
            if parent is None:
                break
            found += 1
        return found


def replayed(context, endpoint, topic, index):
    """What is past, from where the index stands."""
    replay = context.socket(zmq.DEALER)
    replay.connect(endpoint)
    replay.send_multipart([b"", (index.last + 1).to_bytes(8, "big")])
    while True:
        assert replay.poll(PATIENCE_S * 1000), "nothing comes back from the replay endpoint"
        empty, name, sequence, payload = replay.recv_multipart()
        assert empty == b""
        if int.from_bytes(sequence, "big") == END:
            assert (name, payload) == (b"", b"")
            break
        index.seen["replayed"] += 1
        index.hear(name, sequence, payload, topic)
    replay.close()


def main(endpoint, replay_endpoint, topic):
    context = zmq.Context()
    topic = topic.encode()
    events = context.socket(zmq.SUB)
    events.connect(endpoint)
    events.setsockopt(zmq.SUBSCRIBE, topic)
    index = Index()
    for line in sys.stdin:
        asked = json.loads(line)
        give_up = time.monotonic() + PATIENCE_S
        while index.last < asked["until"]:
            assert time.monotonic() < give_up, f"{index.last} of {asked['until']}"
            # Who subscribes late, or missed something, asks for what is past.
            if events.poll(500):
                message = events.recv_multipart()
                if int.from_bytes(message[1], "big") > index.last + 1:
                    replayed(context, replay_endpoint, topic, index)
                index.hear(*message, topic)
            else:
                replayed(context, replay_endpoint, topic, index)
        known = {"rank": index.rank, "block_size": index.block_size, "kinds": sorted(index.kinds)}
        blocks = [index.cached(prompt) for prompt in asked["prompts"]]
        print(json.dumps({"blocks": blocks, **index.seen, **known}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
