/*
 * sessions.pml: which coordinator may end a worker's session: one session, several coordinators, a worker that moves
 * between them.
 *
 * Each attachment puts the session's key in etcd again, so the key's mod_revision names the attachment. A coordinator
 * whose stream broke ends the session only if the key still has the revision of its own put. Each coordinator may sleep
 * between any two steps. While etcd is out of space (`nospace`), it takes no put: an attachment then keeps the key as it is,
 * and a coordinator whose stream broke before or meanwhile leaves the session to its lease.
 *
 * Mutations:  M_MOD       the key is deleted without comparison       M_REVOKE  the lease is revoked without the key's deletion
 *             M_ANNOUNCE  a stream that the coordinator sent away counts as broken
 *             M_FULL      a coordinator ends sessions although etcd is or was out of space
 * Properties: P_KEPT  an attached worker keeps its claims     P_SENT  a worker that is sent away keeps its session
 *             P_GONE  at rest the session of a dead worker is deleted
 */
#ifndef NA
#define NA 4          /* attachments */
#endif
#ifndef NR
#define NR 2
#endif
#ifdef P_ALL
#define P_KEPT
#define P_SENT
#define P_GONE
#endif
byte mod, key, lease = 1;             /* the newest mod_revision, the key's (0: no key), whether the lease lives */
byte at, sent_from;                   /* the coordinator the worker is attached to; the one that sent it away */
bit  alive = 1, lost, begun, nospace, was_nospace;
byte put[NR + 1];                     /* the mod_revision that this coordinator's attachment put */
bit  broken[NR + 1], sent[NR + 1], deleted[NR + 1];

active proctype Worker() {
  byte i;
  do
  /* code: services/coordinator/sessions/session_attach.py; services/coordinator/lease_store/session_keys.py */
  :: alive && !lost && at == 0 && mod < NA && (!begun || key) ->
     if :: i = 1 :: i = NR fi;
     d_step { if :: alive && at == 0 && (!begun || key) && !nospace -> mod++; key = mod; begun = 1; put[i] = mod; broken[i] = 0; sent[i] = 0; deleted[i] = 0; at = i; sent_from = 0;
                   printf("attached to %d, mod %d\n", i, mod) :: else fi; i = 0 }
  :: alive && !lost && at == 0 && nospace && begun && key ->
     if :: i = 1 :: i = NR fi;
     d_step { if :: alive && at == 0 && nospace && key -> put[i] = key; broken[i] = 0; sent[i] = 0; deleted[i] = 0; at = i; sent_from = 0;
                   printf("attached to %d without a put\n", i) :: else fi; i = 0 }
  /* SESSION_EXPIRED: the worker drops all claims and begins a new session */
  :: d_step { alive && !lost && begun && at == 0 && !key ->
#ifdef P_SENT
       assert(!sent_from);
#endif
       lost = 1 }
  /* the stream breaks, or a renewal stays unanswered; code: services/worker/session.py */
  :: d_step { at -> broken[at] = 1; at = 0; printf("the stream breaks\n") }
  /* drain, old age; code: services/coordinator/sessions/session_stream.py SessionStreamServer._send_away */
  :: d_step { alive && at && mod < NA -> sent[at] = 1; broken[at] = 1; sent_from = at; at = 0; printf("sent away\n") }
  :: d_step { alive -> alive = 0; if :: at -> broken[at] = 1 :: else fi; at = 0; sent_from = 0; printf("the worker dies\n") }
  od
}

/* code: services/coordinator/sessions/session_attach.py */
proctype Coordinator(byte i) {
  do
#ifdef M_ANNOUNCE
  :: d_step { broken[i] && put[i] ->
#else
  :: d_step { broken[i] && put[i] && sent[i] -> put[i] = 0; broken[i] = 0 }
#ifdef M_FULL
  :: d_step { broken[i] && put[i] && !sent[i] ->
#else
  :: d_step { broken[i] && put[i] && !sent[i] && nospace -> put[i] = 0; broken[i] = 0 }
  :: d_step { broken[i] && put[i] && !sent[i] && !nospace ->
#endif
#endif
#ifdef M_MOD
       if :: key -> key = 0; deleted[i] = 1 :: else fi;
#else
       if :: key == put[i] -> key = 0; deleted[i] = 1; printf("coordinator %d deletes the session's key\n", i) :: else fi;
#endif
#ifdef M_REVOKE
       deleted[i] = 1;
#endif
       put[i] = 0; broken[i] = 0 }
  :: d_step { deleted[i] -> deleted[i] = 0; lease = 0; printf("coordinator %d revokes the lease\n", i);
#ifdef P_KEPT
       assert(!(alive && at));
#endif
     }
  od
}

/* The alarm NOSPACE, once; code: services/coordinator/generation.py Generation.was_out_of_space */
active proctype Space() {
  byte i;
  do
  :: d_step { !nospace && !was_nospace && begun -> nospace = 1; was_nospace = 1 }
  :: d_step { nospace -> nospace = 0;
#ifndef M_FULL
       i = 1; do :: i <= NR -> if :: broken[i] -> put[i] = 0; broken[i] = 0 :: else fi; i++ :: else -> break od; i = 0
#endif
     }
  od
}

/* Expiry: no renewal arrives from the worker */
active proctype Etcd() {
  do
  :: d_step { lease && begun && at == 0 && !sent_from && (!alive || mod == NA) -> lease = 0; key = 0; printf("the lease expires\n") }
  :: d_step { lease == 0 && key -> key = 0 }
  od
}

active proctype Quiet() {
end:
  timeout ->
#ifdef P_GONE
    assert(alive || !begun || (lease == 0 && key == 0));
#endif
    skip
}

init { byte k; atomic { k = 1; do :: k <= NR -> run Coordinator(k); k++ :: else -> break od } }
