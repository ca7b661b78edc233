#include "troika/server/batch/batch_messages.h"

#include "troika/server/request.h"
#include "troika/server/wire.h"

namespace troika::server {

std::string to_message(const BatchReport& report) {
  std::string text;
  Writer writer(text);
  writer.number(report.worker);
  writer.number(report.ready);
  writer.number(report.finished);
  writer.number(report.loss);
  writer.number(report.asked);
  return text;
}

BatchReport parse_report(std::string_view message) {
  Reader reader(message);
  BatchReport report;
  report.worker = reader.number<uint64_t>();
  report.ready = reader.number<int64_t>();
  check_step(report.ready);
  report.finished = reader.number<uint64_t>();
  report.loss = reader.number<double>();
  report.asked = reader.number<int64_t>();
  check_step(report.asked);
  return report;
}

std::string to_message(const BatchOrder& order) {
  std::string text;
  Writer writer(text);
  writer.number(order.number);
  writer.number(order.worker);
  writer.number(order.step);
  writer.number<uint64_t>(order.has_ended);
  writer.number<uint64_t>(order.is_over);
  writer.number(order.assignment);
  writer.number(order.portion);
  writer.number(order.assigned);
  writer.number(order.judged);
  writer.number<uint64_t>(order.counts);
  writer.number(order.round);
  writer.text(order.failure);
  return text;
}

BatchOrder parse_order(std::string_view message) {
  Reader reader(message);
  BatchOrder order;
  order.number = reader.number<uint64_t>();
  order.worker = reader.number<uint64_t>();
  order.step = reader.number<int64_t>();
  check_step(order.step);
  order.has_ended = reader.number<uint64_t>() != 0;
  order.is_over = reader.number<uint64_t>() != 0;
  order.assignment = reader.number<uint64_t>();
  order.portion = reader.number<uint64_t>();
  order.assigned = reader.number<int64_t>();
  check_step(order.assigned);
  order.judged = reader.number<uint64_t>();
  order.counts = reader.number<uint64_t>() != 0;
  order.round = reader.number<int64_t>();
  check_step(order.round);
  order.failure = reader.text();
  return order;
}

}  // namespace troika::server
