// A trainer's place in a swarm (docs/swarm.md): blocking calls of one thread around swarm::Peer.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/parallel/swarm/duty_cycle.h"
#include "troika/parallel/swarm/swarm_dialer.h"
#include "troika/parallel/swarm/swarm_peer.h"
#include "troika/swarm/metered_endpoint.h"
#include "troika/swarm/peer_report.h"
#include "troika/swarm/token.h"

namespace troika::parallel {

// How gradients with at least `threshold` elements are compressed. Smaller ones, and buffers, are
// not compressed (hivemind's SizeAdaptiveCompression and RoleAdaptiveCompression).
struct SwarmCompression {
  std::string codec = "none";  // "none", "fp16", "bf16" or "int8" of comm::CodecOptions
  int64_t threshold = 65536;
};

struct SwarmMemberOptions {
  explicit SwarmMemberOptions(const net::Secret& of_run) : secret(of_run) {}

  net::Secret secret;
  swarm::Identity identity = swarm::Identity::random();
  std::vector<net::Address> peers = {};
  net::Address listen{"127.0.0.1", 0};        // port 0: any free one
  std::optional<net::Address> announce = {};  // empty: `listen`
  // Where the authority `peer.authority` is; not used without one.
  net::Address authority = {};
  int64_t min_peers = 1;
  Milliseconds join_timeout{60'000};
  SwarmCompression compression = {};
  swarm::BandwidthCap cap = {};
  // The part of the time in which the member computes, in (0, 1].
  double processor_share = 1;
  // Returns why the member pauses now; empty: it does not. Called by the trainer's thread, about
  // ten times a second while it pauses. Null: it never pauses.
  std::function<std::string()> pauses = {};
  std::string version = {};  // of the program, which the other peers are told
  // Without `schema`, `version`, `packing` and `kinds`, which begin() adds.
  swarm::PeerOptions<double> peer = {};
};

// A member begins with this.
struct SwarmStart {
  int64_t step = 0;        // of the state, which is the epoch of the swarm
  std::string state;       // digest of the state; the same on all that begin with equal states
  std::string schema;      // digest of the form of the values
  std::string model;       // the same for people
  bool is_double = false;  // values are float64, otherwise float32
  size_t exact = 0;        // numbers at the beginning of the values that are not compressed
  // Returns the state at the beginning of the present step; with delayed updates, from the end of
  // an average to the update before the next one. Called by the trainer's thread in begin(),
  // is_due(), finish() and take_state().
  std::function<std::string()> save;
};

// A micro-batch that a member has computed.
struct SwarmWork {
  int64_t samples = 0;
  double loss = 0;     // mean of the samples
  double seconds = 0;  // that it took
};

// Steps of the swarm that this member made.
struct SwarmStatistics {
  int64_t steps = 0;
  int64_t whole_steps = 0;  // with all numbers averaged, of all members of the group
  int64_t lone_steps = 0;   // of this member alone
  int64_t loads = 0;        // states of others that it took
  size_t members = 1;       // of the last group
};

// The functions block at most as they say, and are called by one thread.
class SwarmMember {
 public:
  using Stops = std::function<bool()>;

  explicit SwarmMember(SwarmMemberOptions options);
  // Leaves.
  ~SwarmMember();
  SwarmMember(const SwarmMember&) = delete;
  SwarmMember& operator=(const SwarmMember&) = delete;

  const std::string& name() const { return options_.identity.name(); }
  int64_t target_batch() const { return options_.peer.target_batch; }
  const SwarmCompression& compression() const { return options_.compression; }
  // Whether this member trains nothing (swarm::Mode::auxiliary): it calls serve() after begin().
  bool is_auxiliary() const { return options_.peer.mode == swarm::Mode::auxiliary; }
  // Whether updates are delayed by one step (PeerOptions::overlaps).
  bool delays() const { return options_.peer.overlaps; }

  // Listens, connects to the others and waits for min_peers; then, unless they have a later state,
  // this member can train. Ends early if `stops`, which is called about ten times a second, returns
  // true. Throws Error(swarm): `timeout` if no address of a peer answers, or too few peers come, in
  // time; `usage` if the peers have another run, or all that are connected have another schema or
  // target batch, or the authority refuses a token.
  void begin(SwarmStart start, const Stops& stops);
  // Blocks until what this member has reduced of its last average is sent, for averaging_time at
  // most.
  void leave();

  // Tells what this member has computed for the step; for the next one, while an average is on its
  // way. Blocks then for as long as processor_share asks for, or until a step is due, is_behind(),
  // or `stops`.
  void report(const SwarmWork& work, const Stops& stops);
  // Whether this member pauses now (SwarmMemberOptions::pauses); tells the others. It processes no
  // samples then, and follows: it calls rest() and, when a step is due, contribute() with weight 0,
  // or with that of samples from before.
  bool is_paused();
  // Blocks until the pause has ended, is_due(), is_behind(), an average that is on its way is over,
  // or `stops`. Returns false if `stops` returned true.
  bool rest(const Stops& stops);
  // Whether the member must take the state of others before it goes on.
  bool is_behind();
  // Whether the swarm has the samples of the step, so that contribute() is to be called. Gives the
  // state to peers that ask for it.
  bool is_due();

  enum class Outcome : uint8_t {
    averaged,
    no_step,  // nobody had a weight: the swarm gathers more samples for the same step
    behind,   // is_behind()
    stopped,
  };
  // Gives `values`, which are finite, and a mean over this member's samples with this weight, to
  // the average of the step, which is on its way then. With weight 0, the values do not count. Does
  // not block.
  void contribute(const at::Tensor& values, double weight);
  // Whether no average is on its way any more.
  bool is_over();
  // Waits until the average is over, and replaces `values` by the mean of the group. Blocks for
  // averaging_time about, or until `stops`. The values are as they were with other outcomes.
  Outcome finish(at::Tensor& values, const Stops& stops);
  // Whether so many samples are this member's part of a step, by the speeds of all members.
  bool has_share(int64_t samples);

  // If is_behind(): blocks until the state is here, and returns it; empty if it is not needed any
  // more, or `stops` returned true.
  std::optional<std::string> take_state(const Stops& stops);

  SwarmStatistics statistics();

  // Reduces for the others. Blocks until the swarm has made so many steps, 0: without end, or
  // `stops`.
  void serve(int64_t steps, const Stops& stops);

 private:
  // A member computes these samples of a step.
  struct Portion {
    double loss_sum = 0;  // over its samples
    int64_t samples = 0;
    double weight = 0;  // of its contribution
  };
  // Shared with the callbacks, under Endpoint's rules for them.
  struct Shared {
    std::optional<at::Tensor> averaged = {};
    std::optional<std::string> loaded = {};
    swarm::StateVersion saved_version = {};
    std::shared_ptr<const std::string> saved = {};
    net::Duration wanted_until{};  // somebody has asked for a state
    std::string refusal = {};      // of a token
    bool has_token = false;
    SwarmStatistics statistics = {};
    swarm::PeerReport report = {};
    Portion computed = {};     // for the step
    Portion contributed = {};  // to the average that is on its way
  };
  struct Limits {
    DutyCycle duty;
    std::string pause = {};  // why it is paused; empty: it is not
  };

  SwarmCallbacks callbacks();
  void open(const SwarmStart& start);
  void publish_contact();
  void announce();          // again and again
  void publish_report();    // again and again
  bool must_go_on() const;  // under Endpoint's rules: a step is due, or the member is behind
  void report_step();       // that is averaged
  void get_token(const Stops& stops);
  // Under Endpoint's rules: the error of a peer that knew others, none of which trains the same.
  std::optional<Error> misfit() const;
  // Under Endpoint's rules: whether all peers that can be reached are connected, and have told what
  // they train.
  bool has_met_all() const;
  void wait_for(const std::function<bool()>& is_there, const Stops& stops,
                const std::function<std::string()>& describe);
  bool is_behind_now() const;
  bool is_over_now() const;
  bool wants_state() const;
  void save();
  // Calls run_until() in short turns, and serves states in between. Returns whether `is_over`.
  bool wait(const std::function<bool()>& is_over, const Stops& stops);
  void act(const std::function<void()>& body);

  const SwarmMemberOptions options_;
  std::function<std::string()> save_;
  swarm::Contact contact_;
  Shared shared_;
  Limits limits_;
  std::unique_ptr<net::TcpEndpoint> endpoint_;
  std::unique_ptr<swarm::MeteredEndpoint> metered_;
  std::unique_ptr<SwarmPeer> peer_;
  std::unique_ptr<swarm::Door> door_;
  std::unique_ptr<swarm::TokenKeeper> keeper_;
  std::unique_ptr<SwarmDialer> dialer_;
  swarm::Alive alive_;
};

}  // namespace troika::parallel
