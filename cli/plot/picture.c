#include "cli/plot/picture.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <stdio.h>
#include <stdlib.h>

#define PNG_SCALE 1.5 /* so that text is sharp */

/* Where cairo writes to: a memory stream. */
struct output {
    FILE *out;
    char *bytes;
    size_t count;
};

static cairo_status_t write_to(void *closure, const unsigned char *data, unsigned length)
{
    struct output *output = closure;
    return fwrite(data, 1, length, output->out) == length ? CAIRO_STATUS_SUCCESS
                                                          : CAIRO_STATUS_WRITE_ERROR;
}

/* Draws and releases the surface; a PNG is written from the finished picture. */
static kelp_status paint(const struct kelp_picture *picture, cairo_surface_t *surface, bool png,
                         struct output *output, struct kelp_error *reterr)
{
    cairo_t *cairo = cairo_create(surface);

    if (png) {
        cairo_scale(cairo, PNG_SCALE, PNG_SCALE);
    }
    kelp_picture_use(cairo, 0xffffff, 1);
    cairo_paint(cairo);
    picture->draw(cairo, picture->user);
    cairo_status_t drawn = cairo_status(cairo);
    cairo_destroy(cairo);
    if (drawn == CAIRO_STATUS_SUCCESS && png) {
        drawn = cairo_surface_write_to_png_stream(surface, write_to, output);
    }
    cairo_surface_finish(surface);
    if (drawn == CAIRO_STATUS_SUCCESS) {
        drawn = cairo_surface_status(surface);
    }
    cairo_surface_destroy(surface);
    return drawn == CAIRO_STATUS_SUCCESS
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "the picture cannot be drawn: %s",
                           cairo_status_to_string(drawn));
}

static kelp_status render(const struct kelp_picture *picture, bool png, char **ret_bytes,
                          size_t *ret_count, struct kelp_error *reterr)
{
    struct output output = {.bytes = NULL};

    output.out = open_memstream(&output.bytes, &output.count);
    if (!output.out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a picture");
    }
    cairo_surface_t *surface =
        png ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(picture->width * PNG_SCALE),
                                         (int)(picture->height * PNG_SCALE))
            : cairo_svg_surface_create_for_stream(write_to, &output, picture->width,
                                                  picture->height);
    kelp_status status = paint(picture, surface, png, &output, reterr);
    if (fclose(output.out) != 0 && status == KELP_OK) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a picture");
    }
    if (status != KELP_OK) {
        free(output.bytes);
        return status;
    }
    *ret_bytes = output.bytes;
    *ret_count = output.count;
    return KELP_OK;
}

kelp_status kelp_picture_svg(const struct kelp_picture *picture, char **ret_bytes,
                             size_t *ret_count, struct kelp_error *reterr)
{
    return render(picture, false, ret_bytes, ret_count, reterr);
}

kelp_status kelp_picture_png(const struct kelp_picture *picture, char **ret_bytes,
                             size_t *ret_count, struct kelp_error *reterr)
{
    return render(picture, true, ret_bytes, ret_count, reterr);
}

void kelp_picture_use(cairo_t *cairo, uint32_t color, double alpha)
{
    cairo_set_source_rgba(cairo, (color >> 16) / 255.0, (color >> 8 & 0xff) / 255.0,
                          (color & 0xff) / 255.0, alpha);
}

double kelp_picture_text(cairo_t *cairo, const struct kelp_picture_font *font, double x, double y,
                         const char *text)
{
    cairo_text_extents_t extents;

    cairo_select_font_face(cairo, font->monospace ? "monospace" : "sans-serif",
                           CAIRO_FONT_SLANT_NORMAL,
                           font->bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo, font->size);
    cairo_text_extents(cairo, text, &extents);
    cairo_move_to(cairo, x - extents.x_advance * font->anchor, y);
    cairo_show_text(cairo, text);
    return extents.x_advance;
}

void kelp_picture_line(cairo_t *cairo, double x0, double y0, double x1, double y1)
{
    cairo_move_to(cairo, x0, y0);
    cairo_line_to(cairo, x1, y1);
    cairo_stroke(cairo);
}
