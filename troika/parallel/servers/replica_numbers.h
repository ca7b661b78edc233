// Numbers that the replicas of a Downpour SGD share. Internal to the folder.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/server/handle.h"
#include "troika/server/table.h"

namespace troika::server {
class Worker;
}

namespace troika::parallel {

// A table on the servers with the number of pushes, the replicas that take part in a cut, and the
// staleness of pushes. A push is stale by the number of other replicas' pushes between the fetch of
// the parameters of its oldest gradient and the push. Functions with a deadline block until then at
// most, and throw the errors of server::Handle::wait(). Not thread-safe.
class ReplicaNumbers {
 public:
  // `prefix` begins the table's name. The tables of `prefixes` have the same cuts as this one.
  ReplicaNumbers(int replica, int replicas, const std::string& prefix,
                 const std::vector<std::string>& prefixes);

  server::TableSpec spec() const;
  // Must be called before the functions below. `worker` must outlive this object's calls.
  void use(server::Worker& worker) { worker_ = &worker; }

  // Called for each gradient, before the parameters change.
  void add_gradient();
  // Called after a push was sent.
  void count_push();
  // Called after the parameters were pulled. Returns what take_fetch() takes.
  server::Handle start_fetch();
  // Called when the parameters were pulled values from now on.
  void take_fetch(const server::Handle& fetch, Deadline deadline);
  // Returns the number of all replicas' pushes.
  double pushes(Deadline deadline) const;

  // Adds this replica's numbers, and marks that it takes part in the cut of this number.
  void begin_cut(int64_t cut, Deadline deadline);
  // Called when all replicas have begun the cut. Reads the numbers of all.
  void read_cut(Deadline deadline);
  // Whether this replica is the one of this number, from 0 on, among those that have begun the cut.
  bool is_participant(int64_t cut, int number) const;
  // Marks that this replica, the one of this number, has given what all take at the cut. Blocks
  // until the mark is kept.
  void end_giving(int64_t cut, int number, Deadline deadline);
  // Whether the replicas of this number have called end_giving() for this cut, in all tables that
  // have it. So all ranks of a replica agree, even if one of another replica is lost.
  bool has_been_given(int64_t cut, int number, Deadline deadline) const;
  // Returns percentiles of the pushes of all replicas up to the last cut, since the call before.
  std::vector<std::pair<std::string, double>> take_statistics();

 private:
  struct Push {
    server::Handle count;  // of all pushes, including this one
    int64_t own = 0;       // pushes of this replica, including this one
    int64_t before = 0;    // others' pushes that its oldest gradient has seen
  };

  // Moves the staleness of pushes whose count has arrived to steps_.
  void take_counts();

  const std::string table_;
  std::vector<std::string> tables_;  // with the same cuts, including this one
  const int replica_, replicas_;
  server::Worker* worker_ = nullptr;
  int64_t own_ = 0;  // pushes
  int64_t own_at_fetch_ = 0;
  int64_t seen_ = 0;     // others' pushes that the present parameters have
  int64_t oldest_ = -1;  // the same of the oldest gradient that is not pushed; -1: none
  std::deque<Push> sent_;
  std::vector<int64_t> steps_;    // this replica's, by staleness, since the last cut
  std::vector<double> total_;     // the table's numbers at the last cut
  std::vector<double> reported_;  // the same at the last take_statistics()
};

}  // namespace troika::parallel
