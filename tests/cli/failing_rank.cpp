// failing_rank throw|kill|exit: rank 1 fails, or ends as if all were done, while the others wait
// for it in a collective.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "troika/base/error.h"
#include "troika/cluster/failure.h"
#include "troika/comm/world.h"

int main(int, char** argv) try {
  auto group = troika::comm::world();
  group.barrier({.label = "start"});
  if (group.rank() == 1) {
    if (std::string_view(argv[1]) == "kill") ::raise(SIGKILL);
    if (std::string_view(argv[1]) == "exit") std::exit(0);
    throw std::runtime_error("the disk is on fire");
  }
  group.barrier({.label = "never complete"});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  troika::cluster::report_failure(error);
  return troika::exit_code(error);
}
