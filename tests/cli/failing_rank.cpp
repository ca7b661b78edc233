// failing_rank throw|kill|exit: rank 1 fails, or ends as after success, while the others wait for
// it in a collective.
#include <signal.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"

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
  return troika::comm::end_with(error);
}
