"""The model runner: makes model calls that outlive their worker, behind its own fence, and records how each ended.

The files, in the order in which data flows:

main.py               commands, and how the parts are put together
settings.py           the settings from the environment
servicer.py           ModelService: verifies the fencing token, and gives the caller its call
work.py               the data of a call; reads prompts
vendor_requests.py    requests of the vendors' own libraries, and the responses to them
rules.py              decides a request by the newest call of its task
begin_new.py          the first write of the usual call: one statement begins the calls of a batch
store.py              the other writes: admit requests, mark calls SENT, record ends
admission.py          the port: when a call may be sent, and to which endpoint
endpoints/            the endpoints of the providers; sends each call to one of them
failover.py           which endpoint gets a call, and which failures move it (no I/O)
limits/               waits for the rate limits of the providers' keys
runs.py               the calls of this process
ends.py               the ends of calls, as they are recorded and sent
reading.py            gives one reader a call: the text so far, pieces, the end
relay.py              relays requests to the replica that makes the call
liveness.py           this process's row among the runners
sweeping.py           deletes old rows
stops.py              follows the ledger's stops: covered calls are not sent
settled_calls.py      stops calls that the ledger has settled without their ends
listing.py            lists the newest calls, for the ledger to compare after a restore

statements.py         the SQL statements and migrations
sql/                  queries.sql and the migrations of the schema `models`
"""
