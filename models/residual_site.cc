#include "models/residual_site.h"

namespace twinstream {
namespace {

Tensor ValueOf(const Parameter* parameter) {
  return parameter == nullptr ? Tensor() : parameter->value;
}
Tensor GradientOf(const Parameter* parameter) {
  return parameter == nullptr ? Tensor() : parameter->gradient;
}

}  // namespace

StreamSite::StreamSite(ModelContext& context, const StreamSite* before, const WriteRule* write,
                       const ReadRule* read)
    : context_(context), before_(before), has_write_(write != nullptr), has_read_(read != nullptr) {
  Check((before == nullptr) == (write == nullptr),
        "a site's write and the site before go together");
  // With sharded tokens each tensor rank sees only its rows: the weights' gradients are parts.
  const auto declare = [&](const std::string& name) -> Parameter* {
    return name.empty()
               ? nullptr
               : &DeclareVector(context, name, context.hidden(), context.region.shards_tokens());
  };
  if (write != nullptr) {
    write_ = write->write;
    output_weight_ = declare(write->output_weight);
  }
  if (read != nullptr) {
    read_ = read->read;
    x_weight_ = declare(read->x_weight);
    y_weight_ = declare(read->y_weight);
    input_weight_ = declare(read->input_weight);
  }
}

ResidualSite StreamSite::Rule() const {
  return {.eps = context_.eps(),
          .read_before = before_ == nullptr ? nullptr : &before_->read_,
          .write = has_write_ ? &write_ : nullptr,
          .read = has_read_ ? &read_ : nullptr};
}

// The tensors of a site that reads only.
ResidualForwardTensors StreamSite::ReadTensors(const SiteTensors& here) const {
  return {.x = here.x,
          .y = here.y,
          .x_weight = ValueOf(x_weight_),
          .y_weight = ValueOf(y_weight_),
          .input_weight = ValueOf(input_weight_),
          .scales = here.scales,
          .h = here.h ? context_.region.Own(here.h) : Tensor()};
}

void StreamSite::Forward(const SiteTensors& before, Tensor o, const SiteTensors& here) const {
  ResidualForwardTensors t = ReadTensors(here);
  if (has_write_) {
    t.x = before.x;
    t.y = here.y ? before.y : Tensor();  // a y inside a layer ends where none is stored
    t.o = o;
    t.scales_before = before.scales;
    if (before_->read_.base_norm) t.x_weight_before = ValueOf(before_->x_weight_);
    t.output_weight = ValueOf(output_weight_);
    t.x_out = here.x;
    t.y_out = here.y;
  }
  context_.ops.ResidualForward(Rule(), t);
}

void StreamSite::ReadAgain(const SiteTensors& here) const {
  context_.ops.ResidualForward({.eps = context_.eps(), .read = &read_}, ReadTensors(here));
}

void StreamSite::Backward(Tensor dx, Tensor dy, Tensor dh, const SiteTensors& here, Tensor d_o,
                          Tensor h) const {
  context_.ops.ResidualBackward(Rule(), {.dx = dx,
                                         .dy = dy,
                                         .dh = dh,
                                         .x = here.x,
                                         .y = here.y,
                                         .x_weight = ValueOf(x_weight_),
                                         .y_weight = ValueOf(y_weight_),
                                         .input_weight = ValueOf(input_weight_),
                                         .scales = here.scales,
                                         .dx_weight = GradientOf(x_weight_),
                                         .dy_weight = GradientOf(y_weight_),
                                         .dinput_weight = GradientOf(input_weight_),
                                         .o = here.o,
                                         .output_weight = ValueOf(output_weight_),
                                         .doutput_weight = GradientOf(output_weight_),
                                         .d_o = d_o,
                                         .h = h});
}

}  // namespace twinstream
