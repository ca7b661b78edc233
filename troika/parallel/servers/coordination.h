// The coordinating side of Sandblaster L-BFGS, in the process of a parameter server's scheduler.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/layout/sandblaster_exchange.h"
#include "troika/server/batch/lbfgs.h"
#include "troika/server/table.h"

namespace troika::server {
class Coordinator;
class World;
}  // namespace troika::server

namespace troika::parallel {

// The table of the numbers of L-BFGS, which the coordinator reads at the beginning of each round
// and writes at its end. So it has nothing that a checkpoint lacks.
inline constexpr const char* kLbfgsNumbers = "numbers";

// The numbers in this table about the last iteration, before those of Lbfgs::state().
struct IterationNumbers {
  double value = 0;
  double gradient = 0;     // the greatest element
  double step = 0;         // the multiple of the direction
  double evaluations = 0;  // passes over the samples
  double outcome = 0;      // a server::LbfgsOutcome
  double backups = 0;      // portions that were given to an idle replica besides
  double repeated = 0;     // portions of lost replicas that were computed again

  static constexpr size_t kCount = 7;
  std::vector<double> to_numbers() const;
  static IterationNumbers from(std::span<const double> numbers);
};

server::LbfgsOptions lbfgs_options(const layout::SandblasterExchange& options);

// Returns the tables of a model of `parameters` trained elements.
std::vector<server::TableSpec> sandblaster_tables(const layout::SandblasterExchange& options,
                                                  uint64_t parameters);

// A thread that coordinates replicas (server::Coordinator): a round is an iteration of L-BFGS. It
// ends when all replicas have left or were lost. If it fails, replicas get the error. It has no
// parameter and no gradient, only numbers.
class Coordination {
 public:
  // `world`, which must outlive it, has WorldOptions::has_coordinator and the scheduler. `replicas`
  // workers take part. A message that is not answered within `timeout` is an error; the replicas
  // may take any time.
  Coordination(server::World& world, const layout::SandblasterExchange& options, int replicas,
               Milliseconds timeout);
  // Ends the thread, also in the middle of a round. Blocks.
  ~Coordination();
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;

 private:
  void run();
  void make_rounds(server::Coordinator& coordinator);

  server::World& world_;
  const layout::SandblasterExchange options_;
  const int replicas_;
  const Milliseconds timeout_;
  std::atomic<bool> is_stopped_ = false;
  std::thread thread_;
};

}  // namespace troika::parallel
