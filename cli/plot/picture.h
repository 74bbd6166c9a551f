/*
 * Pictures by cairo, as SVG and PNG, and what charts are drawn with: colours, text, lines. Pure but
 * for the fonts that cairo finds.
 */
#ifndef KELP_CLI_PLOT_PICTURE_H
#define KELP_CLI_PLOT_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct _cairo cairo_t; /* of cairo.h */

struct kelp_picture {
    double width, height;
    void (*draw)(cairo_t *cairo, const void *user); /* on white */
    const void *user;
};

/* *ret_bytes is owned (free()), and followed by a NUL. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_picture_svg(const struct kelp_picture *picture, char **ret_bytes,
                             size_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_picture_png(const struct kelp_picture *picture, char **ret_bytes,
                             size_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;

/* What is drawn from now on: a colour as 0xRRGGBB, and how far it covers. */
void kelp_picture_use(cairo_t *cairo, uint32_t color, double alpha);

struct kelp_picture_font {
    double size;
    double anchor; /* x is the text's left end (0), its middle (0.5), or its right end (1) */
    bool bold;
    bool monospace;
};
/* Returns the width of the text. */
double kelp_picture_text(cairo_t *cairo, const struct kelp_picture_font *font, double x, double y,
                         const char *text);
void kelp_picture_line(cairo_t *cairo, double x0, double y0, double x1, double y1);

#endif
